#!/bin/bash
# The broker as apache/kafka starts it: by the configuration of /mnt/shared/config, whose disk it formats once.
set -eu
cp -R /mnt/shared/config/. /opt/kafka/config
properties=/opt/kafka/config/server.properties
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$properties"
exec java -Xmx512m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*' kafka.Kafka "$properties"
