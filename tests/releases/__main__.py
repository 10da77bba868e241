"""Reads the supported releases' sources; writes source.json and the table in docs/support.md."""

import json
import sys

from sglang_hooks.releases import SUPPORTED
from tests.releases import matrix
from tests.releases.source_check import check
from tests.releases.wheels import Wheel

source = {version: matrix.to_json(check(Wheel(version))) for version in SUPPORTED}
matrix.SOURCE.write_text(json.dumps(source, indent=1) + "\n")
matrix.PAGE.write_text(matrix.current())
sys.stdout.write(f"{matrix.SOURCE.name} and {matrix.PAGE.name} say what {len(source)} releases say\n")
