#!/bin/sh
# Migrates Airflow's database and writes the password of user admin where its SimpleAuthManager looks for it.
set -eu
airflow db migrate
umask 077
python -c 'import json, os; print(json.dumps({"admin": os.environ["ADMIN_PASSWORD"]}))' \
  > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
