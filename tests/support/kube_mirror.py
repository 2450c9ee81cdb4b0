"""What an API server has of one kind in one namespace: listed once, then watched. The owner's own
writes are visible at once, whatever the watch has shown so far."""
from __future__ import annotations

import http.client
import json
import threading
import time

from support import kube_api

WINDOW_S = 8  # of a watch; shorter than clients wait for a line
AGAIN_S = 0.1  # between two attempts while the API server is unreachable


class Mirror:
    """`news`: an Event that is set when something has changed."""

    def __init__(self, api, plural, namespace, news):
        self.api, self.plural, self.namespace, self.news = api, plural, namespace, news
        self.objects = {}  # name -> object
        self.dead = set()  # uids
        self.synced = False
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.connection = None
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def close(self):
        self.ending.set()
        connection = self.connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(2)
            except OSError:
                pass  # it has ended by itself
        self.thread.join()

    def all(self):
        with self.lock:
            return dict(self.objects)

    def take(self, obj):
        """An object from the watch, or from the answer to a write; the newer one counts."""
        meta = obj["metadata"]
        with self.lock:
            known = self.objects.get(meta["name"])
            if meta["uid"] in self.dead or (
                known is not None
                and known["metadata"]["uid"] == meta["uid"]
                and int(known["metadata"]["resourceVersion"]) >= int(meta["resourceVersion"])
            ):
                return
            self.objects[meta["name"]] = obj
        self.news.set()

    def drop(self, obj):
        meta = obj["metadata"]
        with self.lock:
            self.dead.add(meta["uid"])
            if self.objects.get(meta["name"], obj)["metadata"]["uid"] == meta["uid"]:
                self.objects.pop(meta["name"], None)
        self.news.set()

    # ---- its thread ----

    def _follow(self):
        while not self.ending.is_set():
            try:
                version = self._list()
                while version is not None and not self.ending.is_set():
                    version = self._watch(version)
            except (OSError, http.client.HTTPException, ValueError, kube_api.Refused) as why:
                # 404: no server has this kind, so there are no objects
                self.synced |= getattr(why, "code", None) == 404
                self.ending.wait(AGAIN_S)  # the server is unreachable, or its pages have expired
        self.api.close()

    def _list(self):
        path, found, page = kube_api.path_of(self.plural, self.namespace), [], {}
        while page == {} or page.get("continue"):
            answer = self.api.call("GET", path + (f"?continue={page['continue']}" if page else ""))
            found += answer["items"]
            page = answer["metadata"]
        there = {o["metadata"]["uid"] for o in found}
        for old in self.all().values():
            if old["metadata"]["uid"] not in there and int(
                old["metadata"]["resourceVersion"]
            ) <= int(page["resourceVersion"]):
                self.drop(old)
        for obj in found:
            self.take(obj)
        self.synced = True
        self.news.set()
        return page["resourceVersion"]

    def _watch(self, version):
        """The version from which to go on; None: it was too old."""
        self.connection = self.api.connect()
        headers = {"Authorization": f"Bearer {self.api.token}"} if self.api.token else {}
        began = time.monotonic()
        try:
            self.connection.request(
                "GET",
                (
                    f"{kube_api.path_of(self.plural, self.namespace)}?watch=true"
                    f"&resourceVersion={version}&timeoutSeconds={WINDOW_S}&allowWatchBookmarks=true"
                ),
                headers=headers,
            )
            answer = self.connection.getresponse()
            if answer.status != 200:
                return None
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return None
                version = event["object"]["metadata"]["resourceVersion"]
                if (
                    event["type"] != "BOOKMARK"
                    and event["object"]["metadata"].get("namespace") == self.namespace
                ):
                    (self.drop if event["type"] == "DELETED" else self.take)(event["object"])
        finally:
            self.connection.close()
            if time.monotonic() - began < AGAIN_S:
                self.ending.wait(AGAIN_S)
        return version
