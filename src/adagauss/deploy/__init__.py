"""Use a trained classifier elsewhere: one ONNX file, or a web server."""
