import subprocess
import sys


def test_spool_and_collector_load_no_pyspark() -> None:
    program = (
        "import sys, hanse.pipeline, hanse.pipeline.spool, hanse.pipeline.collector, hanse.pipeline.schemas.mqtt\n"
        "import hanse.pipeline.leaf_collector\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in {'pyspark', 'pandas', 'deltalake'}]\n"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
