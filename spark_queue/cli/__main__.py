"""Entry point of `python -m spark_queue.cli`, for machines without `spark-queue` on the PATH."""

from spark_queue.cli import main

main()
