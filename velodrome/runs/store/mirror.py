"""A run's rows in the store while it trains: a thread keeps them what the run's folder says.

`mirrors_of` joins that with the upload of a folder that stands for a URL.

Training never waits for the store. A store that fails is tried again and caught up from the folder; how it goes is told
once when it fails, once when it works again, and at the end if something is missing.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from pathlib import Path

from velodrome.errors import DamagedStoreError, StoreError, sentence
from velodrome.runs.bucket.place import Bucket
from velodrome.runs.bucket.upload import Upload
from velodrome.runs.folder import RunFolder
from velodrome.runs.store.from_folder import add_metrics, enter_facts, enter_run
from velodrome.runs.store.rebuild import set_aside
from velodrome.runs.store.sinks import end_of_lines
from velodrome.runs.store.store import SqlStore, check_address, identity_of, open_store, store_file

INTERVAL = 1.0  # seconds between two looks at the folder
RETRY_SECONDS = 5.0  # between two attempts on a store that failed
BUSY_SECONDS = 5.0  # how long an attempt waits for others who write
SILENT_SECONDS = 30.0  # after which a store that does not answer is taken for one that failed
END_SECONDS = 20.0  # how long the end of a run waits for the last attempt

log = logging.getLogger("velodrome.runs")


class StoreMirror:
    """Keeps the rows of a run in a store equal to its folder, from `start` to `close`."""

    def __init__(self, folder: RunFolder, root: Path, url: str | None) -> None:
        self.place = str(store_file(root)) if url is None else check_address(url)  # a mistake is told before training
        self.folder, self.root, self.url = folder, root, url
        self.problem: str | None = None  # of the last attempt
        self._untold: str | None = None
        self._store: SqlStore | None = None
        self._identity: tuple[int, int] | None = None  # of its file
        self._copied: int | None = None  # bytes of the metrics file that the store has; None: not known
        self._changed = threading.Condition()
        self._facts = self._anew = True
        self._stopping = self._done = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="rows to the store", daemon=True)

    @property
    def command(self) -> str:
        """The command that enters later what is missing; a password in the store's address is left to the person."""
        store = "" if self.url is None else f" --store {shlex.quote(self.place)}"
        return f"velodrome runs rebuild --folder {shlex.quote(str(self.root))}{store}"

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def changed(self, anew: bool = False) -> None:
        """Say that checkpoints or the status changed; anew: that the metrics file was cut, too."""
        with self._changed:
            self._facts, self._anew = True, self._anew or anew
            self._changed.notify_all()

    def news(self) -> str | None:
        """Return what a person should know of the store and was not told yet."""
        with self._changed:
            silent = self._busy_since is not None and time.monotonic() - self._busy_since > SILENT_SECONDS
            if silent and self.problem is None:
                self._fail(f"{self.place}: has not answered for {SILENT_SECONDS:g} seconds.")
            found, self._untold = self._untold, None
            return found

    def close(self, seconds: float = END_SECONDS) -> str | None:
        """Write what is left, wait so long for it, and return what to tell if the store lacks something."""
        with self._changed:
            self._stopping = self._facts = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        with self._changed:
            if self._done and self.problem is None:
                return None
            why = self.problem or f"{self.place}: has not answered for {seconds:g} seconds"
        lacking = f"the store lacks rows of {self.folder.path.name}: {sentence(why)}"
        told = f"{lacking} The run's folder has all; enter it: {self.command}"
        log.warning("%s", told)
        return told

    # The thread

    def _run(self) -> None:
        stopping = False
        while not stopping:
            with self._changed:
                stopping = self._stopping
                facts, anew = self._facts, self._anew
                self._facts = self._anew = False
                self._busy_since = time.monotonic()
            error: str | None = None
            try:
                self._bring_up_to_date(facts, anew)
            except StoreError as problem:
                error = str(problem)
            except Exception as problem:  # whatever it is, training goes on
                log.exception("rows could not be written to the store")
                error = f"{self.place}: {type(problem).__name__}: {sentence(problem)}"
            if error is not None or stopping:
                self._let_go()
            with self._changed:
                self._busy_since, self._done = None, stopping
                if error is not None:
                    if self.problem is None:
                        self._fail(error)
                    self.problem = error
                elif self.problem is not None:
                    self.problem, self._untold = None, f"{self.place}: works again, and lacks nothing"
                    log.info("%s", self._untold)
                if not stopping:
                    wait = INTERVAL if error is None else RETRY_SECONDS
                    self._changed.wait_for(lambda: self._stopping or (self._facts and not self.problem), timeout=wait)

    def _fail(self, error: str) -> None:
        self.problem = error
        told = f"{error} Training goes on; the run's folder has all, and the store is caught up when it works."
        self._untold = f"warning: {told}"
        log.info("%s", told)  # a warning is for the end, if it does not work by then

    def _let_go(self) -> None:
        """Close the store; it is opened again for the next attempt, which looks at everything."""
        store, self._store, self._copied = self._store, None, None
        if store is not None:
            store.close()

    def _bring_up_to_date(self, facts: bool, anew: bool) -> None:
        """Write what is new; a damaged file is set aside, and who looks for the rows of others finds them made anew."""
        try:
            self._copy(facts, anew)
        except DamagedStoreError as error:
            self._let_go()
            aside = None if self.url is not None else set_aside(self.root, self._identity)
            if aside is None:
                raise
            told = f"{store_file(self.root)}: was damaged, and is {aside.name} now; a new one was made"
            log.warning("%s: %s", told, error)
            with self._changed:
                self._untold = f"warning: {told}"
            self._copy(facts, anew)

    def _copy(self, facts: bool, anew: bool) -> None:
        if self._store is not None and self._store.is_replaced:
            log.warning("%s: was removed or replaced; this run is entered into the new one", self.place)
            self._let_go()
        if self._store is None:
            self._identity = identity_of(store_file(self.root))
            self._store = open_store(self.root, self.url, busy_seconds=BUSY_SECONDS)
            self._identity = identity_of(store_file(self.root))
        if anew or self._copied is None:
            self._copied = enter_run(self._store, self.folder)
            return
        if self.folder.metrics_path.is_file():
            end = end_of_lines(self.folder.metrics_path)
            if end > self._copied:
                add_metrics(self._store, self.folder, begin=self._copied)
                self._copied = end
        if facts:
            enter_facts(self._store, self.folder)


class Mirrors:
    """What follows the folder of a run in a bucket: the store and the upload, told and asked as one."""

    def __init__(self, store: StoreMirror, upload: Upload) -> None:
        self.store, self.upload = store, upload

    def start(self) -> None:
        """Begin."""
        self.upload.start()  # first: what cannot be sent is refused before anything is entered
        self.store.start()

    def changed(self, anew: bool = False) -> None:
        """Say that checkpoints or the status changed; anew: that the metrics file was cut, too."""
        self.store.changed(anew)
        self.upload.changed()

    def news(self) -> str | None:
        """Return what a person should know and was not told yet."""
        return self.store.news() or self.upload.news()

    def close(self) -> str | None:
        """Write what is left, and return what to tell if the store lacks something."""
        lacking = self.store.close()
        self.upload.close()
        return lacking


def mirrors_of(folder: RunFolder, root: Path, url: str | None) -> StoreMirror | Mirrors:
    """Return what follows a run's folder while it trains. root, url: of its store."""
    store, bucket = StoreMirror(folder, root, url), Bucket.behind(folder.path)
    return store if bucket is None else Mirrors(store, Upload(bucket, folder.path))
