"""Every accepted kind of image becomes images of one size, with names; other input raises an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import ExifTags, Image

from adagauss.data.decode import READS_HEIC, ResizeMode, decode_image, fitted
from adagauss.data.images import Images
from adagauss.data.inputs import ImageSpec, class_folder_images, pixel_statistics, read_images
from adagauss.errors import DataError
from tests.conftest import WriteImage

Array = npt.NDArray[np.uint8]
RNG = np.random.default_rng(0)
COLOUR: Array = RNG.integers(0, 256, (5, 12, 16, 3), dtype=np.uint8)
GREY: Array = RNG.integers(0, 256, (5, 12, 16), dtype=np.uint8)


def pixels(images: Images) -> Array:
    return images.batch(torch.arange(len(images))).numpy()


@pytest.mark.parametrize(
    "same",
    [
        COLOUR,
        COLOUR.transpose(0, 3, 1, 2),
        torch.from_numpy(COLOUR),
        COLOUR / 255,
        COLOUR.astype(np.uint16),
        COLOUR.astype(">i4"),
        COLOUR[:, ::-1][:, ::-1],
        COLOUR.tolist(),
        list(COLOUR),
        [image.transpose(2, 0, 1) for image in COLOUR],
        [torch.from_numpy(image)[None] for image in COLOUR],
        [Image.fromarray(image) for image in COLOUR],
        tuple(Image.fromarray(image) for image in COLOUR),
        np.concatenate([COLOUR, np.full((5, 12, 16, 1), 255, np.uint8)], 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_colour_images_of_every_form(same: Any) -> None:
    read = read_images(same)
    np.testing.assert_array_equal(pixels(read.images), COLOUR.transpose(0, 3, 1, 2))
    assert read.names == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    "same", [GREY, GREY[:, None], GREY[..., None], list(GREY), [Image.fromarray(image) for image in GREY]]
)
def test_grey_images_of_every_form(same: Any) -> None:
    np.testing.assert_array_equal(pixels(read_images(same).images), GREY[:, None])


@pytest.mark.parametrize(
    "one", [COLOUR[0], COLOUR[0].transpose(2, 0, 1), Image.fromarray(COLOUR[0]), torch.from_numpy(COLOUR[0])]
)
def test_one_image_needs_no_list(one: Any) -> None:
    read = read_images(one)
    np.testing.assert_array_equal(pixels(read.images), COLOUR[:1].transpose(0, 3, 1, 2))
    assert read.names == ("0",)


def test_generators_are_read_once_and_one_by_one() -> None:
    alive = 0

    def generate() -> Iterator[Any]:
        nonlocal alive
        for image in COLOUR:
            alive += 1
            yield Image.fromarray(image)

    np.testing.assert_array_equal(pixels(read_images(generate()).images), COLOUR.transpose(0, 3, 1, 2))
    assert alive == 5


def test_a_generator_of_large_images_is_not_held_at_full_size() -> None:
    sizes = read_images(np.full((3000, 2000, 3), 7, np.uint8) for _ in range(3)).images.shape
    assert sizes == (3, 224, 224)


def test_three_axes_are_one_image_or_grey_images() -> None:
    three = GREY[:3]
    assert pixels(read_images(three).images).shape == (1, 3, 12, 16)
    np.testing.assert_array_equal(pixels(read_images(three, count=3).images), three[:, None])
    np.testing.assert_array_equal(pixels(read_images(three, ImageSpec(shape=(1, 12, 16))).images), three[:, None])
    assert pixels(read_images(three, ImageSpec(shape=(3, 12, 16))).images).shape == (1, 3, 12, 16)
    one = read_images(COLOUR[0], ImageSpec(shape=(1, 12, 16))).images
    np.testing.assert_array_equal(pixels(one)[0, 0], np.asarray(Image.fromarray(COLOUR[0]).convert("L")))


def test_images_in_memory_come_out_as_the_same_files_do(tmp_path: Path) -> None:
    paths = []
    for number, size in enumerate([(40, 30), (25, 60), (16, 16)]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(paths[-1])
    pictures = [Image.open(path) for path in paths]
    for shape in ((3, 10, 10), (1, 10, 10), (3, 50, 50), (3, 10, 20)):
        of_files = np.stack([decode_image(path, shape[1:], shape[0]) for path in paths])
        wanted = ImageSpec(shape=shape)
        for given in (paths, pictures, [np.asarray(picture) for picture in pictures], tmp_path):
            np.testing.assert_array_equal(pixels(read_images(given, wanted).images), of_files)


def test_a_learner_of_oblong_images_gets_the_centre_in_its_proportions() -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    image[5:15] = 200
    read = read_images([image], ImageSpec(shape=(3, 10, 20)))
    assert pixels(read.images).shape == (1, 3, 10, 20)
    assert (pixels(read.images) == 200).all()


@pytest.mark.parametrize(
    ("sizes", "wanted", "shape"),
    [
        ([(30, 20)] * 2, None, (3, 30, 20)),
        ([(300, 200)] * 2, None, (3, 200, 200)),
        ([(300, 400)] * 2, None, (3, 224, 224)),
        ([(30, 20), (40, 50), (900, 800)], None, (3, 40, 40)),
        ([(30, 20), (40, 50)], 16, (3, 16, 16)),
    ],
)
def test_the_first_images_decide_the_size(
    sizes: list[tuple[int, int]], wanted: int | None, shape: tuple[int, int, int]
) -> None:
    images = [np.zeros((*size, 3), np.uint8) for size in sizes]
    assert read_images(images, ImageSpec(size=wanted)).images.shape == shape
    if len(set(sizes)) == 1:
        assert read_images(np.stack(images), ImageSpec(size=wanted)).images.shape == shape


def test_files_are_not_enlarged(tmp_path: Path, write_image: WriteImage) -> None:
    for number in range(3):
        write_image(tmp_path / f"{number}.png", size=(60, 40))
    assert read_images(tmp_path).images.shape == (3, 40, 40)
    assert read_images(tmp_path, ImageSpec(size=50)).images.shape == (3, 50, 50)


def test_grey_and_colour_together_are_colour() -> None:
    read = read_images([GREY[0], COLOUR[0]])
    np.testing.assert_array_equal(pixels(read.images)[0], np.stack([GREY[0]] * 3))


def test_transparency_is_white_paper() -> None:
    layer = np.zeros((1, 6, 7, 4), np.uint8)
    layer[..., 3] = 51
    assert (pixels(read_images(layer).images) == 204).all()
    assert (pixels(read_images([Image.fromarray(layer[0])]).images) == 204).all()


def test_names_are_paths(tmp_path: Path, write_image: WriteImage) -> None:
    one, two = write_image(tmp_path / "a" / "one.png"), write_image(tmp_path / "b" / "two.png")
    assert read_images(tmp_path).names == (str(Path("a", "one.png")), str(Path("b", "two.png")))
    assert read_images(one).names == (str(one),)
    assert read_images([str(two), one.parent]).names == (str(two), str(one))
    assert read_images(np.array([str(two)])).names == (str(two),)
    assert read_images(path for path in (one, two)).names == (str(one), str(two))


def test_a_picture_in_two_classes_gives_a_warning(
    tmp_path: Path, write_image: WriteImage, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, name in enumerate(("ant/0", "ant/1", "bee/0", "bee/1")):
        write_image(tmp_path / f"{name}.png", seed=seed)
    class_folder_images(tmp_path, ImageSpec())
    assert not caplog.text
    (tmp_path / "bee" / "again.png").write_bytes((tmp_path / "ant" / "1.png").read_bytes())
    (tmp_path / "ant" / "again.png").write_bytes((tmp_path / "ant" / "1.png").read_bytes())
    class_folder_images(tmp_path, ImageSpec())
    assert f"{Path('ant', '1.png')} and {Path('bee', 'again.png')} are the same picture, learned as both" in caplog.text


def test_class_folders(tmp_path: Path, write_image: WriteImage) -> None:
    for name in ("ant", "bee"):
        write_image(tmp_path / name / "1.png")
    data = class_folder_images(tmp_path, ImageSpec())
    assert (data.classes, data.labels) == (("ant", "bee"), ["ant", "bee"])
    with pytest.raises(DataError, match="holds no class folders"):
        class_folder_images(tmp_path / "ant", ImageSpec())
    with pytest.raises(DataError, match="is a file: give its label"):
        class_folder_images(tmp_path / "ant" / "1.png", ImageSpec())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no images were given: the list or generator is empty"),
        ((_ for _ in ()), "the list or generator is empty"),
        (np.zeros((0, 3, 8, 8)), "no images were given"),
        (np.zeros((2, 3, 0, 8)), "are empty"),
        (np.zeros((2, 2, 3, 8, 8)), "must have shape"),
        (np.zeros((2, 5, 8, 8)), "1, 3 or 4 channels"),
        (np.zeros((4, 8, 8), bool), "True and False: multiply"),
        (np.zeros((4, 8, 8), complex), "complex128 values"),
        (np.full((4, 8, 8), 300), r"0\.\.255, these lie in 300\.\.300"),
        (np.full((4, 8, 8), 2.0), r"0\.\.1, these lie in 2\.\.2"),
        ([np.zeros((8, 8)), np.full((8, 8), np.nan)], "image 1: .*NaN"),
        ([np.zeros((8, 8)), "photo.jpg"], "item 1 is str: each item must be"),
        ([np.zeros((8, 8)), 3], "item 1 is int"),
        ([(np.zeros((8, 8)), 0)], "item 0 is tuple: give images and labels as two arguments"),
        ([b"\xff\xd8\xff"], "item 0 is bytes: open them first"),
        ([np.zeros((32, 3, 8, 8))], "each item must be one image"),
        ([np.zeros((32, 8, 8))], "each item must be one image"),
        ([[[1, 2], [3]]], "do not make an array"),
        ({"a": 1}, "got dict"),
        (None, "got NoneType"),
        (7, "got int"),
        (b"\xff\xd8\xff", "got bytes"),
        ("no such file.jpg", "no such file or folder: 'no such file.jpg'"),
        (["no such file.jpg"], "no such file or folder"),
        ("https://birds.org/1.jpg", "is an address, not a path: download"),
        ("x" * 10_000, "no such file or folder: 'xxx.*…'"),
        ("a\0b", "no such file or folder"),
    ],
    ids=range(27),
)
def test_input_that_is_not_an_image_gives_a_message(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_images(given)


def test_paths_and_images_in_one_list_are_refused(tmp_path: Path, write_image: WriteImage) -> None:
    path = write_image(tmp_path / "a.png")
    with pytest.raises(DataError, match="item 1 is ndarray, those before it are paths"):
        read_images([path, COLOUR[0]])


def test_an_empty_folder_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_images(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds no images: fill it or remove it"


def test_pictures_of_other_kinds_are_not_passed_over_in_silence(
    tmp_path: Path, write_image: WriteImage, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "phone.AVIF").write_bytes(b"avif")
    with pytest.raises(DataError, match=r"only files that are not read \(1 \.avif\): convert them"):
        read_images(tmp_path)
    write_image(tmp_path / "a.png")
    with caplog.at_level(logging.WARNING):
        assert len(read_images(tmp_path)) == 1
    assert "1 .avif" in caplog.text


@pytest.mark.skipif(READS_HEIC, reason="the extra heic is installed")
def test_without_the_extra_heic_photographs_are_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "phone.HEIC").write_bytes(b"heic")
    with pytest.raises(DataError, match=r"not read \(1 \.heic\): .* install the extra heic"):
        read_images(tmp_path)


@pytest.mark.skipif(not READS_HEIC, reason="the extra heic is not installed")
def test_heic_photographs_are_read_upright(tmp_path: Path) -> None:
    photo = Image.fromarray(np.full((64, 96, 3), 200, np.uint8))
    photo.paste((20, 20, 20), (0, 0, 48, 64))  # the left half is dark
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn: the left half becomes the upper one
    photo.save(tmp_path / "phone.HEIC", "HEIF", exif=exif.tobytes())
    read = pixels(read_images(tmp_path, ImageSpec(size=64)).images)[0]
    assert read[:, :24].mean() < 60
    assert read[:, 40:].mean() > 160


@pytest.fixture
def torn(tmp_path: Path, write_image: WriteImage) -> list[Path]:
    """Four files; the second is truncated, the third holds text."""
    paths = [write_image(tmp_path / "torn" / f"{number}.jpg", seed=number, size=(64, 64)) for number in range(4)]
    paths[1].write_bytes(paths[1].read_bytes()[:800])
    paths[2].write_text("no image", encoding="utf-8")
    return paths


def test_bad_files_are_skipped_with_one_warning(torn: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read = read_images(torn, ImageSpec(skip_bad=True))
    assert (read.kept.tolist(), read.given, len(read.images)) == ([0, 3], 4, 2)
    assert read.names == (str(torn[0]), str(torn[3]))
    (record,) = caplog.records
    assert record.message.startswith("skipped 2 of 4 images: ")
    assert "1.jpg" in record.message


def test_pictures_that_cannot_be_decoded_are_treated_like_files(
    torn: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    def opened() -> list[Image.Image]:
        return [Image.open(torn[index]) for index in (0, 1, 3)]

    with pytest.raises(DataError, match=r"1 of 3 images cannot be decoded: image 1 \(.*skip_bad=True"):
        read_images(opened())
    with caplog.at_level(logging.WARNING):
        read = read_images(opened(), ImageSpec(skip_bad=True))
    assert (read.names, read.kept.tolist(), read.given) == (("0", "2"), [0, 2], 3)
    assert len(caplog.records) == 1
    with pytest.raises(DataError, match="none of 1 images"):
        read_images(opened()[1:2], ImageSpec(skip_bad=True))


def test_a_class_whose_images_are_all_bad_is_refused(tmp_path: Path, write_image: WriteImage) -> None:
    write_image(tmp_path / "ant" / "1.png")
    (tmp_path / "bee").mkdir()
    (tmp_path / "bee" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"none of the images in .*bee can be decoded"):
        class_folder_images(tmp_path, ImageSpec(skip_bad=True))


def test_statistics_are_those_of_all_pixels() -> None:
    mean, std = pixel_statistics(read_images(COLOUR).images)
    np.testing.assert_allclose(mean, (COLOUR / 255).mean((0, 1, 2)))
    np.testing.assert_allclose(std, (COLOUR / 255).std((0, 1, 2)))


def halves(width: int, height: int) -> Image.Image:
    """A picture that is black on the left and white on the right, with red ends."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, width // 2 :] = 255
    pixels[:, : width // 8] = pixels[:, -(width // 8) :] = (255, 0, 0)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("kind", ["file", "picture", "array", "generator"])
def test_the_resize_mode_decides_what_is_seen_of_a_wide_picture(tmp_path: Path, kind: str) -> None:
    picture = halves(64, 16)
    picture.save(tmp_path / "wide.png")
    ways: dict[str, Callable[[], Any]] = {
        "file": lambda: str(tmp_path / "wide.png"),
        "picture": lambda: picture,
        "array": lambda: np.asarray(picture)[None],
        "generator": lambda: (one for one in [picture]),
    }
    red = {}
    for mode in get_args(ResizeMode):
        (image,) = read_images(ways[kind](), ImageSpec(shape=(3, 16, 16), resize_mode=mode)).images.batch(
            torch.tensor([0])
        )
        red[mode] = bool(((image[0] > 200) & (image[1] < 60)).any())
        assert (image == 128).all(0).sum() == (12 * 16 if mode == "pad" else 0)
    assert red == {"crop": False, "stretch": True, "pad": True}


@pytest.mark.parametrize(("width", "height"), [(4000, 1), (1, 4000), (7, 5), (5, 5)])
@pytest.mark.parametrize("mode", get_args(ResizeMode))
def test_every_mode_resizes_extreme_proportions(width: int, height: int, mode: ResizeMode) -> None:
    assert fitted(Image.new("L", (width, height), 9), 8, 6, mode).shape == (1, 8, 6)
    if mode != "pad":
        assert set(fitted(Image.new("L", (width, height), 9), 8, 6, mode).flatten().tolist()) == {9}
