"""Anti-aliased shapes on a white picture, in NumPy alone."""

import numpy as np


class Canvas:
    """A picture in pixels, x to the right and y up, both from the lower left corner."""

    def __init__(self, height: int, width: int) -> None:
        self._pixels = np.full((height, width, 3), 255.0)
        y, x = np.mgrid[:height, :width] + 0.5
        self._points = np.stack([x, y], axis=-1)

    def fill_polygon(self, corners: np.ndarray, colour: tuple[int, int, int]) -> None:
        """A convex polygon, `corners` being `[n, 2]` in either direction of turning."""
        following = np.roll(corners, -1, axis=0)
        edges = following - corners
        turn = corners[:, 0] @ following[:, 1] - corners[:, 1] @ following[:, 0]
        normals = np.stack([edges[:, 1], -edges[:, 0]], axis=-1) * (1.0 if turn > 0 else -1.0)
        normals = normals / np.linalg.norm(normals, axis=-1, keepdims=True)
        offsets = np.sum(normals * corners, axis=-1)
        self._blend(np.max(self._points @ normals.T - offsets[None, None], axis=-1), colour)

    def fill_circle(self, centre: np.ndarray, radius: float, colour: tuple[int, int, int]) -> None:
        """A disc."""
        self._blend(np.linalg.norm(self._points - centre[None, None], axis=-1) - radius, colour)

    def to_uint8(self) -> np.ndarray:
        """The picture, `[height, width, 3]`, top row first."""
        return np.ascontiguousarray(self._pixels[::-1].round().astype(np.uint8))

    def _blend(self, distance: np.ndarray, colour: tuple[int, int, int]) -> None:
        """Cover what lies within a shape, given each pixel's signed distance to its border."""
        cover = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
        self._pixels += cover * (np.array(colour, float)[None, None] - self._pixels)
