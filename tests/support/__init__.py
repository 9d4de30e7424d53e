"""Real servers on this machine: Kafka, an S3 server, Spark standalone, Airflow.

The tests, the demo and the benchmarks all start the same ones. Every server listens on 127.0.0.1 only, keeps its
files under the directory that it is given, writes its output to a log there, and is stopped by the process id
that was recorded when it started. Only :mod:`tests.support.fixtures` knows pytest.
"""
