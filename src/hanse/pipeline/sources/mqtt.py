# ruff: noqa: N802 - the methods have Spark's names
"""Data source `mqtt` as Spark sees it: creates readers and writers from options."""

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from hanse.errors import LocalError
from hanse.pipeline.schemas import mqtt as contract
from hanse.pipeline.sources.options import ReadOptions, WriteOptions


class MqttDataSource(DataSource):
    """Reads the spools of collectors, runs a collector if it has a url, and writes rows to a broker."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "mqtt"

    def schema(self) -> StructType:
        """Return the schema of a row."""
        return contract.struct_type()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader for `readStream`."""
        from hanse.pipeline.sources.stream import MqttStreamReader  # noqa: PLC0415 - each process loads only its side

        options = ReadOptions.parse(self.options)
        _check_schema(schema)
        for name, value in (("since", options.since_us), ("until", options.until_us)):
            if value is not None:
                raise LocalError(f"The option {name} is for a batch read; a stream begins at startingOffsets.")
        return MqttStreamReader(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader for `read`."""
        from hanse.pipeline.sources.batch import MqttBatchReader, MqttPushdownReader  # noqa: PLC0415

        options = ReadOptions.parse(self.options)
        _check_schema(schema)
        if options.collector is not None:
            raise LocalError(
                "A batch read takes no url: it reads what a collector has spooled. Give spool (and clientId for "
                "one producer of it), or use readStream with trigger(availableNow=True)."
            )
        return MqttPushdownReader(options) if options.push_filters else MqttBatchReader(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Create the writer for `writeStream`; MQTT has nothing to overwrite, so both modes append."""
        from hanse.pipeline.sources.writer import MqttStreamWriter  # noqa: PLC0415

        del overwrite
        return MqttStreamWriter(WriteOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer for `write`."""
        from hanse.pipeline.sources.writer import MqttBatchWriter  # noqa: PLC0415

        if overwrite:
            raise LocalError('Publishing cannot overwrite what was published; use mode("append").')
        return MqttBatchWriter(WriteOptions.parse(self.options), schema)


def _check_schema(schema: StructType) -> None:
    if schema != contract.struct_type():
        raise LocalError("The mqtt source has a schema of its own; leave out .schema(...) and select what you need.")
