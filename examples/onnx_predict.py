"""Classify pictures with an exported classifier: python onnx_predict.py birds.onnx photo.jpg ...

This needs onnxruntime, numpy and Pillow, and nothing else.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
for path in sys.argv[2:]:
    try:
        picture = ImageOps.exif_transpose(Image.open(path))
    except Exception as error:  # a folder, or a file that cannot be decoded
        print(f"{path}: skipped ({error})", file=sys.stderr)
        continue
    if picture.mode not in ("RGB", "L", "CMYK", "P", "1"):
        print(f"{path}: save it with 8 bits a colour and without transparency first", file=sys.stderr)
        continue
    picture = picture.convert("RGB")
    probabilities, best = session.run(["probabilities", "label_index"], {"pixels": np.asarray(picture)[None]})
    print(f"{path}\t{labels[best[0]]}\t{probabilities[0, best[0]]:.3f}")
