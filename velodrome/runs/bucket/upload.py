"""What a run writes goes to its bucket while it trains: a thread sends it, and training never waits for it.

A bucket that fails is tried again. What it lacks in the end is an error, because nobody could continue the run
elsewhere; its folder here has all.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

from velodrome.errors import BucketError, RunLockedError, VelodromeError
from velodrome.runs.bucket.place import Bucket

RETRY_SECONDS = 5.0  # between two attempts on a bucket that failed
END_SECONDS = 60.0  # that the last attempts may take

log = logging.getLogger("velodrome.runs")


class Upload:
    """Sends a run's folder, from `start` to `close`."""

    def __init__(self, bucket: Bucket, folder: Path, end_seconds: float = END_SECONDS) -> None:
        self.bucket, self.folder, self.end_seconds = bucket, bucket.top(folder), end_seconds
        self.problem: VelodromeError | None = None  # of the last attempt
        self._untold: str | None = None
        self._wake = threading.Condition()
        self._changed = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="files to the bucket", daemon=True)

    def start(self) -> None:
        """Send what there is; a bucket that cannot be written is an error now, and not after an hour."""
        self.bucket.take(self.folder)
        self.bucket.send(self.folder)
        self._thread.start()

    def changed(self) -> None:
        """Say that there is something to send."""
        with self._wake:
            self._changed = True
            self._wake.notify_all()

    def news(self) -> str | None:
        """Return what a person should know and was not told yet; a run that is another's by now is an error."""
        with self._wake:
            if isinstance(self.problem, RunLockedError):
                raise self.problem
            found, self._untold = self._untold, None
            return found

    def close(self) -> None:
        """Send the rest; BucketError if it cannot be sent, unless another error is on its way already."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.ident is None:
            return
        self._thread.join()
        if self.problem is not None and sys.exc_info()[0] is None:
            if isinstance(self.problem, RunLockedError):
                raise self.problem
            raise BucketError(
                f"{self.problem} The bucket lacks the last of {self.folder.name}, and {self.folder} has it: when the "
                f"bucket can be written, velodrome train --resume {self.bucket.url_of(self.folder)} on this machine "
                "sends it."
            )

    def _run(self) -> None:
        deadline: float | None = None
        while True:
            with self._wake:
                waits = RETRY_SECONDS if self.problem is not None else None
                self._wake.wait_for(lambda: self._stopping or (self._changed and self.problem is None), timeout=waits)
                stopping, self._changed = self._stopping, False
            problem = self._attempt()
            with self._wake:
                if problem is not None and self.problem is None:
                    log.warning("%s", problem)
                    self._untold = f"warning: {problem} Training goes on, and it is tried again."
                elif problem is None and self.problem is not None:
                    self._untold = f"{self.bucket.url}: works again, and lacks nothing"
                self.problem = problem
            if isinstance(problem, RunLockedError):
                return
            if stopping:
                deadline = deadline or time.monotonic() + self.end_seconds
                if problem is None or time.monotonic() > deadline:
                    return
                time.sleep(min(RETRY_SECONDS, 0.1 + self.end_seconds / 10))

    def _attempt(self) -> VelodromeError | None:
        try:
            self.bucket.send(self.folder)
        except VelodromeError as error:
            return error
        except Exception as error:  # whatever it is, training goes on
            log.exception("files could not be sent to %s", self.bucket.url)
            return BucketError(f"{self.bucket.url}: {type(error).__name__}: {error}")
        return None
