#!/bin/bash
# What a container of spark.Dockerfile runs: `executor` as Spark on Kubernetes asks for it, by variables that Spark sets;
# anything else is a class of Spark's with its arguments.
set -eu
if [ "${1:-}" != executor ]; then
  exec spark-class "$@"
fi
readarray -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort --field-separator=_ --key=4 --numeric-sort | sed 's/[^=]*=//')
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
