"""Whatever people have as images, as one source of equally sized images with a name each.

- a path: an image file, or a folder, which stands for all image files in it and below
- a list or generator of paths: files and folders, in this order
- a PIL image, a list or a generator of them
- an array or tensor of 4 axes: (N, C, H, W) or (N, H, W, C), with 1, 3 or 4 channels
- an array or tensor of 3 axes: grey images (N, H, W), or one image (H, W, C) or (C, H, W); see `arrays.layout`
- an array or tensor of 2 axes: one grey image
- a list or generator of arrays or tensors: one image each, of any sizes

**Values** are uint8 in 0..255 or floats in 0..1. Transparent parts (a fourth channel) are shown on white.

**Size.** Once something is learned, every image is brought to the learner's size and number of channels: the largest
centred part with its proportions, resampled as image files are. Before, the images decide: pixels in memory that all
have one size of at most 224 pixels keep it; everything else becomes squares of 224 pixels, or of the median shorter
side where that is less, so that nothing is enlarged without being asked for. A size that the user gives decides alone.

**Names** are paths: relative to the folder if one folder was given, otherwise as they were given. Images in memory are
named by their position: "0", "1", ...
"""

from __future__ import annotations

from adagauss.inputs.files import class_folder_images
from adagauss.inputs.named import ImagesLike, NamedImages, Wanted
from adagauss.inputs.reading import read_images
from adagauss.inputs.statistics import pixel_statistics

__all__ = ["ImagesLike", "NamedImages", "Wanted", "class_folder_images", "pixel_statistics", "read_images"]
