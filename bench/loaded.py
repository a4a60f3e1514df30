"""Find out which spark_queue each Python process of Spark imports, by a small query.

A query runs Python in four places: the process of its reader, the one that plans its partitions,
the workers, and the process that commits a batch of the sink. Each has a path of its own, and may
import another package than the driver.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

SCHEMA = "process string, code string"


def imported() -> str:
    """Return version and folder of the spark_queue that this process imports."""
    import spark_queue

    return f"{spark_queue.__version__} {Path(spark_queue.__file__).resolve().parent}"


def imported_by_spark(spark: SparkSession, folder: Path) -> dict[str, str]:
    """Return the package that each Python process of Spark imports, by name of the process."""
    spark.dataSource.register(Loaded)
    name = uuid.uuid4().hex[:8]
    file = folder / f"loaded-{name}.json"
    rows = spark.readStream.format(Loaded.name()).load()
    writer = rows.writeStream.format(Loaded.name()).option("file", str(file))
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    writer.trigger(availableNow=True).start().awaitTermination()
    found: dict[str, str] = json.loads(file.read_text())
    return found


@dataclass
class Part(InputPartition):
    """Imports of the processes before this task."""

    seen: dict[str, str]


@dataclass
class Written(WriterCommitMessage):
    """Imports of all processes up to this task."""

    seen: dict[str, str]


class Loaded(DataSource):
    """A source of one batch with a row per process, and a sink to the option `file`."""

    @classmethod
    def name(cls) -> str:
        return "bench_loaded"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LoadedReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return LoadedWriter(Path(self.options["file"]))


class LoadedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has one batch, whose offset contains the import of the reader's process."""

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"reader": imported()}

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [Part({**end, "planner": imported()})]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        assert isinstance(partition, Part)
        yield from {**partition.seen, "reading worker": imported()}.items()

    def commit(self, end: Any) -> None:
        pass


class LoadedWriter(DataSourceStreamWriter):
    """Writes the imports of all processes, its own included, to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return Written({**{row.process: row.code for row in iterator}, "writing worker": imported()})

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        seen = {"committer": imported()}
        for one in messages:
            if isinstance(one, Written):
                seen |= one.seen
        self.file.write_text(json.dumps(seen))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass
