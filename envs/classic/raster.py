"""Anti-aliased shapes on a white image, in NumPy alone."""

import numpy as np

Color = tuple[int, int, int]


class Canvas:
    """Image with coordinates in pixels from the lower left corner, x to the right and y up."""

    def __init__(self, height: int, width: int) -> None:
        self._pixels = np.full((height, width, 3), 255.0)

    def fill_polygon(self, corners: np.ndarray, color: Color) -> None:
        """Fill a convex polygon with `corners` `[n, 2]`, clockwise or counterclockwise."""
        following = np.roll(corners, -1, axis=0)
        edges = following - corners
        winding = corners[:, 0] @ following[:, 1] - corners[:, 1] @ following[:, 0]
        normals = np.stack([edges[:, 1], -edges[:, 0]], axis=-1) * (1.0 if winding > 0 else -1.0)
        normals = normals / np.linalg.norm(normals, axis=-1, keepdims=True)
        offsets = np.sum(normals * corners, axis=-1)
        rows, columns, points = self._nearby_pixels(corners.min(axis=0), corners.max(axis=0))
        distance = np.max(points @ normals.T - offsets[None, None], axis=-1, initial=-np.inf)
        self._blend(rows, columns, distance, color)

    def fill_circle(self, center: np.ndarray, radius: float, color: Color) -> None:
        """Fill a disc."""
        rows, columns, points = self._nearby_pixels(center - radius, center + radius)
        distance = np.linalg.norm(points - center[None, None], axis=-1) - radius
        self._blend(rows, columns, distance, color)

    def draw_curve(self, y: np.ndarray, color: Color) -> None:
        """Draw a line one pixel wide from edge to edge; `y` is its height per column center."""
        height, width = self._pixels.shape[:2]
        steepness = np.sqrt(1.0 + np.gradient(y) ** 2)
        middle = np.arange(height)[:, None] + 0.5
        distance = np.abs(middle - y[None]) / steepness[None] - 0.5
        self._blend(slice(0, height), slice(0, width), distance, color)

    def to_uint8(self) -> np.ndarray:
        """Return the image, `[height, width, 3]`, top row first."""
        return np.ascontiguousarray(self._pixels[::-1].round().astype(np.uint8))

    def _nearby_pixels(self, low: np.ndarray, high: np.ndarray) -> tuple[slice, slice, np.ndarray]:
        """Return rows, columns and centers `[rows, columns, 2]` of the pixels near a box."""
        size = np.array(self._pixels.shape[1::-1])
        first = np.clip(np.floor(low - 1.0).astype(int), 0, size)
        last = np.clip(np.ceil(high + 1.0).astype(int), first, size)
        y, x = np.mgrid[first[1] : last[1], first[0] : last[0]] + 0.5
        points = np.stack([x, y], axis=-1)
        return slice(first[1], last[1]), slice(first[0], last[0]), points

    def _blend(self, rows: slice, columns: slice, distance: np.ndarray, color: Color) -> None:
        """Paint the inside of a shape, given each pixel's signed distance to its border."""
        cover = np.clip(0.5 - distance, 0.0, 1.0)[..., None]
        current = self._pixels[rows, columns]
        self._pixels[rows, columns] = current + cover * (
            np.array(color, float)[None, None] - current
        )
