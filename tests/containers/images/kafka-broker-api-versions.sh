#!/bin/bash
# Whether the broker listens: Kafka's tools are not among the jars of the tests.
[ "$1" = --bootstrap-server ] && exec 3<>"/dev/tcp/${2%:*}/${2#*:}"
