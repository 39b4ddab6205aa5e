"""Image observations: recognises their spaces and converts them to `[C, H, W] uint8`."""

from typing import Any

import numpy as np


def is_image(space: Any) -> bool:
    """Whether a library's space is a Box of bytes 0 to 255 in two to four dimensions.

    Boards and the like, whose numbers have smaller bounds, are no images.
    """
    shape = getattr(space, "shape", None) or ()
    if not 2 <= len(shape) <= 4 or getattr(space, "dtype", None) != np.uint8:
        return False
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return low is not None and high is not None and not np.any(low) and bool(np.all(high == 255))


def channels_first(image: np.ndarray) -> np.ndarray:
    """Gives an image, or a stack of images along the first axis, its channels first.

    Args:
        image: `[H, W]`, `[H, W, C]`, `[C, H, W]`, `[K, H, W, C]` or `[K, C, H, W]`; channels are
            along the shorter one of the first and the last axis, the last if they are equal.

    Returns: `[C, H, W]`; of a stack `[K * C, H, W]`.
    """
    if image.ndim == 2:
        return image[None]
    first = image.ndim - 3
    if image.shape[-1] <= image.shape[first]:
        image = np.moveaxis(image, -1, first)
    return np.ascontiguousarray(image).reshape(-1, *image.shape[-2:])


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what `channels_first` gives."""
    return channels_first(np.empty(shape, np.uint8)).shape
