"""`format("queue")`: the entry point of Spark.

Each of Spark's processes imports this module, and needs one of the readers or writers. So these
are imported in the methods that return them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_queue.errors import OptionError
from spark_queue.options.consistency import option_error
from spark_queue.options.inputs import LOG
from spark_queue.options.queue_options import QueueOptions
from spark_queue.options.roles import role_of_write
from spark_queue.options.time_zones import SessionZone
from spark_queue.options.values import EXACTLY_ONCE, READ_ROLES, Role
from spark_queue.spark.output_modes import mode_error
from spark_queue.spark.pickling import PickledWithLoader
from spark_queue.spark.read.driver_process import set_program
from spark_queue.spark.read.limits import set_cluster_cores
from spark_queue.spark.schema import check_read_schema, read_schema
from spark_queue.spark.tracebacks import hide_tracebacks
from spark_queue.stores import pin_databases, resolve_options
from spark_queue.stores.services.owner import Owner

if TYPE_CHECKING:
    from spark_queue.spark.write.data_writers import BatchWriter, Push, StreamWriter
    from spark_queue.spark.write.settle import Settle


@hide_tracebacks
class QueueDataSource(PickledWithLoader, DataSource):
    """A queue as a source and a sink, for batches and streams.

    Name: `queue`. Options: see `spark_queue.options.queue_options`. They are checked when the
    DataFrame is created.
    """

    #: The cores of the cluster, if the session that registered this class knows them.
    cores: int | None = None

    #: The time zone of the session that registered this class.
    zone: str | None = None

    #: The fields of the `Owner` that is the program that registered this class, if it did.
    program: dict[str, Any] | None = None

    @classmethod
    def name(cls) -> str:
        return "queue"

    def schema(self) -> StructType:
        return read_schema(self._options(*READ_ROLES))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema, "snapshot")
        if options.mode == LOG:
            from spark_queue.spark.read.log_stream import LogSnapshot

            return LogSnapshot(options, schema)
        from spark_queue.spark.read.snapshot import snapshot_reader

        return snapshot_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._read_options(schema, "stream")
        if options.mode == LOG:
            from spark_queue.spark.read.log_stream import LogStream

            return LogStream(options, schema)
        from spark_queue.spark.read.queue_stream import QueueStream

        return QueueStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise OptionError(
                "a queue is never overwritten: write with mode('append'); to empty it first use Queue(...).purge()",
                option="mode",
            )
        from spark_queue.spark.write.data_writers import BatchWriter

        return BatchWriter(self._operation(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise mode_error("complete")
        from spark_queue.spark.write.data_writers import StreamWriter

        return StreamWriter(self._operation(schema, streaming=True))

    def _operation(self, schema: StructType, *, streaming: bool) -> Push | Settle:
        role = role_of_write(self.options)
        options = pin_databases(self._options(role), create=True)
        if role == "settle":
            from spark_queue.spark.write.settle import Settle

            return Settle(options, schema)
        if streaming and options.txn_app_id is not None:
            raise option_error("txnAppId", "is for batch writes: leave it out, a streaming query needs none")
        if options.delivery == EXACTLY_ONCE:
            from spark_queue.spark.write.publish import Publish

            return Publish(options, schema, streaming=streaming)
        from spark_queue.spark.write.data_writers import Push

        return Push(options, schema)

    def _read_options(self, schema: StructType, role: Role) -> QueueOptions:
        options = self._options(role)
        set_cluster_cores(self.cores)
        set_program(Owner(**self.program) if self.program else None)
        check_read_schema(schema, options)
        return pin_databases(options, create=role == "stream" and not options.fail_if_missing)

    def _options(self, *roles: Role) -> QueueOptions:
        options = resolve_options(QueueOptions.parse(self.options, *roles))
        if options.time_zone is None and self.zone is not None:
            options = replace(options, time_zone=SessionZone(self.zone))
        return options
