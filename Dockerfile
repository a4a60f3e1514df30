# `spark-queue serve`. Settings come as arguments and from the environment: see "In a container" in docs/rest.md.

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY spark_queue spark_queue
COPY pyspark_queue pyspark_queue
RUN python -m venv /opt/spark-queue
RUN /opt/spark-queue/bin/python -m pip install --no-cache-dir --constraint constraints.txt '.[cli,mongodb,redis,rest]'

FROM python:3.13-slim
RUN groupadd --gid 10001 spark-queue \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin spark-queue \
    && install --directory --owner=10001 --group=10001 /data
COPY --from=build /opt/spark-queue /opt/spark-queue
ENV PATH=/opt/spark-queue/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 3444
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:3444/health', timeout=4)"]
ENTRYPOINT ["spark-queue", "serve", "--host", "0.0.0.0", "--port", "3444"]
