"""`python -m spark_queue.cli`, where the program `spark-queue` is not on the PATH."""

from spark_queue.cli import main

main()
