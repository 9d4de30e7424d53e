#!/bin/sh
# As in chrislusf/seaweedfs: root hands /data over to an ordinary user, who runs weed.
set -eu
if [ "$(id -u)" = 0 ]; then
  chown -R seaweed:seaweed /data
  exec setpriv --reuid=seaweed --regid=seaweed --init-groups "$0" "$@"
fi
exec weed -logtostderr=true "$@"
