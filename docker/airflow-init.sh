#!/bin/sh
# Migrates Airflow's database and writes the users' passwords where its SimpleAuthManager looks for them.
set -eu
airflow db migrate
umask 077
python -c 'import json, os; print(json.dumps({user: os.environ[f"{user.upper()}_PASSWORD"] for user in ("admin", "reviewer")}))' \
  > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
