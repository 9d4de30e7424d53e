#!/bin/bash
# As in postgres: root hands the data over to user postgres, who makes the cluster and its database once.
set -eu
if [ "$(id -u)" = 0 ]; then
  install --directory --owner postgres --mode 700 "$PGDATA"
  install --directory --owner postgres /var/run/postgresql
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth=scram-sha-256 >/dev/null
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  pg_ctl --wait --options="-c listen_addresses=''" start
  PGPASSWORD=$POSTGRES_PASSWORD createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --wait stop
fi
exec "$@" -c 'listen_addresses=*'
