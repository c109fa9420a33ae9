import os
import subprocess
import sys
from pathlib import Path

import hanse


def test_reporting_needs_nothing_but_the_standard_library() -> None:
    """Import the package without Spark, Arrow or NumPy, as on an edge box."""
    heavy = ("pyspark", "pyarrow", "numpy", "pandas", "mqtt5")
    code = f"import sys, hanse.telemetry; print([name for name in {heavy!r} if name in sys.modules])"
    here = os.environ | {"PYTHONPATH": str(Path(hanse.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=here)
    assert result.stdout.strip() == "[]"
