"""The continuity page behind Airflow's own authorization, mounted as Airflow mounts it, in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

import httpx
import pytest
import uvicorn
from airflow.api_fastapi.app import init_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi import FastAPI
from starlette.routing import Mount

from tests.plugins.world import World
from tests.support.ports import HOST, free_port
from tests.support.waiting import HUNG, wait_until
from tidemark_airflow.links.urls import PREFIX
from tidemark_airflow.web.app import page_app
from tidemark_airflow.web.reader import reader

ANN, VIC, NOBODY = ("ann", "user"), ("vic", "viewer"), ("nobody", None)
"""May edit DAGs; may see DAGs; is signed in and may nothing."""


class PageServer:
    """Serves the page of ``world``; usable with ``with``. The users sign in by tokens, see :meth:`token`."""

    def __init__(self, world: World, home: Path, app: FastAPI | None = None) -> None:
        """Nothing is started yet. ``app`` is what the page is mounted in, as Airflow's own application would be."""
        self._app = app or FastAPI()
        self.world = world
        self._home = home
        self._patch = pytest.MonkeyPatch()
        self._port = free_port()
        self.url = f"http://{HOST}:{self._port}{PREFIX}/"

    def __enter__(self) -> Self:
        setenv = self._patch.setenv
        setenv("AIRFLOW__TIDEMARK__TOPICS", str(self.world.topics_file))
        setenv("AIRFLOW__TIDEMARK__SCAN_SECONDS", "0.01")
        setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ann:user,vic:viewer")
        setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(self._home / "passwords.json"))
        setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of this test that is long enough for the algorithm" * 2)
        initdb()
        reader.cache_clear()
        self._app.router.routes.insert(0, Mount(PREFIX, page_app()))
        self.manager = init_auth_manager(self._app)
        self._server = uvicorn.Server(uvicorn.Config(self._app, host=HOST, port=self._port, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started, what="the page's server")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        purge_cached_app()
        reader.cache_clear()
        self._patch.undo()

    def token(self, user: tuple[str, str | None]) -> str:
        """What signs ``user`` in: a name and a role."""
        return self.manager.generate_jwt(SimpleAuthManagerUser(username=user[0], role=user[1]))

    def client(self, user: tuple[str, str | None] | None = None) -> httpx.Client:
        """A client of the page, signed in as ``user`` if one is given."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=HUNG, trust_env=False)
