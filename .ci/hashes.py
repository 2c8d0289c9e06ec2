"""Print the packages of a report of pip with their versions and hashes, as `.ci/requirements.txt`.

python -m pip install --dry-run --ignore-installed --report report.json -c constraints.txt '.[dev,docs]'
python .ci/hashes.py report.json > .ci/requirements.txt
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEAD = """\
# Written by .ci/hashes.py: the tested versions with hashes, for Linux x86-64, Python 3.11 and torch's CPU build.
# pip install --require-hashes --extra-index-url https://download.pytorch.org/whl/cpu -r .ci/requirements.txt
# pip install --no-deps --no-build-isolation --editable .
"""


def main(path: Path) -> None:
    """Print one line per package."""
    lines = []
    for package in json.loads(path.read_text(encoding="utf-8"))["install"]:
        about = package["metadata"]
        if about["name"] != "adagauss":
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{about['name']}=={about['version']} --hash=sha256:{digest}\n")
    sys.stdout.write(HEAD + "".join(sorted(lines, key=str.lower)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
