"""Image observations: recognises their spaces and converts them to `[C, H, W] uint8`."""

from typing import Any

import numpy as np


def is_image(space: Any) -> bool:
    """Returns whether a library's space is a Box of bytes 0 to 255 with two to four dimensions.

    Boards and the like, whose numbers have smaller bounds, are not images.
    """
    shape = getattr(space, "shape", None) or ()
    if not 2 <= len(shape) <= 4 or getattr(space, "dtype", None) != np.uint8:
        return False
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return low is not None and high is not None and not np.any(low) and bool(np.all(high == 255))


def channels_first(image: np.ndarray) -> np.ndarray:
    """Moves the channels of an image, or of a stack of images, to the first axis.

    Args:
        image: `[H, W]`, `[H, W, C]`, `[C, H, W]`, `[K, H, W, C]` or `[K, C, H, W]`; the shorter of
            the first and the last axis holds the channels, the last one if they are equal.

    Returns: `[C, H, W]`; for a stack `[K * C, H, W]`.
    """
    if image.ndim == 2:
        return image[None]
    first = image.ndim - 3
    if image.shape[-1] <= image.shape[first]:
        image = np.moveaxis(image, -1, first)
    return np.ascontiguousarray(image).reshape(-1, *image.shape[-2:])


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of `channels_first`'s result."""
    return channels_first(np.empty(shape, np.uint8)).shape
