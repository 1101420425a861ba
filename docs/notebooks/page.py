"""MkDocs hook that renders notebooks as Markdown pages."""

import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FENCE = "````"


def on_files(files: Files, config: Any) -> Files:
    """Add a generated Markdown page for every notebook."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            text = Path(config["docs_dir"], file.src_uri).read_text(encoding="utf-8")
            page = file.src_uri.removesuffix(".ipynb") + ".md"
            files.append(File.generated(config, page, content=as_markdown(json.loads(text))))
    return files


def as_markdown(notebook: dict[str, Any]) -> str:
    """Convert a notebook's cells and their outputs to Markdown."""
    blocks: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(_fenced(source, "python"))
        blocks += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Render an output in the richest form that Markdown supports."""
    if output["output_type"] == "stream":
        return _fenced("".join(output["text"]), "text")
    data = output["data"]
    if "image/png" in data:
        encoded = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="output" src="data:image/png;base64,{encoded}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return _fenced("".join(data["text/plain"]), "text")


def _fenced(text: str, language: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"
