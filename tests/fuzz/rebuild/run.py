"""One `shoal run` within a history, and the comparison of every file with what the model demands."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from shoal.ui.cli.text import printable

from . import cluster
from .command import KILLED, Said
from .difference import PROMISES, Difference, content_of
from .workflow import Made

if TYPE_CHECKING:
    from .play import Player

_REASON = re.compile(r"^(.*): runs because (.*)$", re.MULTILINE)
INTERRUPTED = 130
EGG = b"cuckoo\n"


class Run:
    """One `shoal run` within a history, and everything it must leave as it was."""

    def __init__(
        self,
        player: Player,
        chance: Random,
        *,
        strike: str = "",
        overwrite: bool = False,
        again: Run | None = None,
        away: bool = False,
    ) -> None:
        """With `away` it is brought to a cluster and left there."""
        self.player, self.chance, self.strike = player, chance, strike
        self.again = again
        history = player.history
        self.check = history.check
        if not self.check and "content" in history.features:
            self.check = chance.choice(("", "time", "content"))
        if again is not None and not PROMISES["check"]:
            self.check = again.check
        self.force = not strike and again is None and chance.random() < 0.05
        self.overwrite = overwrite and player.knows_adopt
        self.cluster = "cluster" in history.features and not history.dropin and (away or chance.random() < 0.4)
        self.away = away
        self.targets: list[str] = []
        names = [made.name for made in player.model().made.values() if made.task.form != "family"]
        if again is not None:
            self.targets = again.targets
        elif chance.random() < 0.15 and names and not history.dropin:
            self.targets = [chance.choice(names)]
        self.said = Said(0, "")
        self.refused = False

    def told(self) -> str:
        options = " ".join(self._words()[1:])
        return f"{self.strike or 'run'}: shoal {options} -> status {self.said.status}"

    def _words(self) -> list[str]:
        if self.player.history.dropin:
            return ["makeflow", "-j", "2", self.player.flow.file]
        words = ["run", "--plain", "--explain"]
        words += ["--cluster", cluster.NAME] if self.cluster else ["-j", str(1 + self.player.history.seed % 3)]
        words += ["--detach"] * self.away
        words += ["--check", self.check] if self.check else []
        words += ["--force"] * self.force + ["--overwrite"] * self.overwrite
        return [*words, "-w", self.player.flow.file, *self.targets, *self.player.words()]

    # ---- the run ---------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Runs it to its end and compares; a run that is brought to a cluster only begins."""
        player = self.player
        if self.cluster:
            player.command.need_cluster()
        self.model = player.model()
        self.wanted = self.model.wanted(self.targets)
        self.before = player.project.tree()
        tasks = [self.model.made[key].task for key in self.wanted]
        self.eggs = {player.flow.find(task.cuckoo).outputs[0] for task in tasks if task.cuckoo}
        self._note_versions()
        self.marks = {key for key in self.wanted if os.path.exists(f"{player.command.control}/flaky.{key}")}
        strike = self._prepare_strike()
        self.said = player.shoal(*self._words(), strike=strike)
        if self.is_left():
            return
        self._put_away_strike()
        if self.cluster and self.strike:
            self._collect()
        if player.history.dropin and self.strike in ("launcher", ""):
            player.command.await_leftovers()
        self.after = player.project.tree()
        self._compare()

    def is_left(self) -> bool:
        """Whether it goes on without us."""
        return self.away and self.said.status == 0 and bool(_REASON.search(self.said.text))

    def _collect(self) -> None:
        """What the cluster goes on with after its client is gone is brought home."""
        said = self.player.shoal("attach", "--plain", "-w", self.player.flow.file)
        if said.status not in (0, 1, 2):
            raise Difference("status", f"attach ended with {said.status}")

    def end(self, said: Said, *, edited: bool) -> None:
        """Compares when a run that was brought to a cluster has been collected; what was edited may count or not."""
        self.said = Said(said.status, self.said.text + said.text)
        self.after = self.player.project.tree()
        self.away = False
        if not edited:
            self._compare()
            return
        self.strike = "detached"
        for path, entry in self.after.items():
            is_new = entry.kind != "directory" and not entry.same(self.before.get(path))
            if is_new and any(self.model.made[key].owns(path) for key in self.wanted):
                self.player.versions.setdefault(path, set()).add(content_of(entry))
        self._after_kill()

    def _note_versions(self) -> None:
        for key in self.wanted:
            made = self.model.made[key]
            for path, content in made.files.items():
                self.player.note_version(made, path, content)
        for path in self.eggs:
            self.player.versions.setdefault(path, set()).add(EGG)

    def _prepare_strike(self) -> Callable[[int], None] | None:
        if not self.strike:
            return None
        control = self.player.command.control
        hooked = [key for key in sorted(self.wanted) if self.model.made[key].task.hooked]
        signal_name = "INT" if self.strike == "interrupt" else "KILL"
        if self.strike == "moment" or not hooked or (self.strike == "interrupt" and self.chance.random() < 0.3):
            pause = self.chance.uniform(0, 0.05)
            self.strike = f"SIG{signal_name} after {pause * 1000:.0f} ms"

            def end(pid: int) -> None:
                time.sleep(pause)  # the moment is drawn, not a condition to wait for
                os.kill(pid, getattr(signal, f"SIG{signal_name}"))

            return end
        settled = self._settled()
        likely = [key for key in hooked if key not in settled] or hooked
        gone = [key for key in hooked if any(name not in self.before for name in self.model.made[key].task.outputs)]
        if gone and self.chance.random() < 0.7:  # these run in any case
            likely = gone
        key, point = self.chance.choice(likely), self.chance.choice(("before", "half", "half", "after"))
        if self.strike != "run" and (self.cluster or self.model.made[key].task.action == "function"):
            self.strike, signal_name = "run", "KILL"
        at = f"{control}/strike.{key}.{point}"
        who = "$PPID" if self.strike == "launcher" else f"$(cat {control}/pid)"
        with open(at, "w") as stream:
            wait = "" if self.cluster else "; sleep 9"  # the run must not hear of an end before it is struck
            stream.write(f"rm -f {at}; kill -{signal_name} {who}{wait}\n")
        self.strike = f"SIG{signal_name} to the {self.strike.replace('interrupt', 'run')} {point} {key}"
        return None

    def _put_away_strike(self) -> None:
        control = self.player.command.control
        if self.strike:
            for name in os.listdir(control):
                if name.startswith("strike."):
                    os.unlink(os.path.join(control, name))

    # ---- what must hold --------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        status = self.said.status
        if status == 2 or (self.player.history.dropin and status == 1 and self._missing()):
            self._compare_refusal()
            return
        control = self.player.command.control
        consumed = {key for key in self.marks if not os.path.exists(f"{control}/flaky.{key}")}
        failing = frozenset(key for key in consumed if self.model.made[key].task.retries == 0)
        reasons = dict(_REASON.findall(self.said.text))
        for key in self.wanted:  # what was adopted of a task says nothing any more when the task has run
            if printable(self.model.made[key].name) in reasons:
                self.player.adopted.pop(key, None)
        if status in (0, 1) or not self.strike:
            self.model = self.player.model(failing)
        self.player.compare_others(self.before, self.after, self._is_other, "a run")
        self._compare_user_content()
        if self._is_cut_off():
            self._after_kill()
            return
        if self.strike and status in (1, INTERRUPTED):
            self._compare_stopped()
            self._after_kill()
            return
        if status not in (0, 1):
            raise Difference("status", f"a run ended with {status}")
        if PROMISES["refuse"] and any(self._must_refuse(key) for key in self.wanted) and not self.overwrite:
            names = [name for key in sorted(self.wanted) for name in self._unknown(key)]
            raise Difference("not refused", f"{names} were not made by the workflow, and yet it ran")
        if self._missing():
            raise Difference("not refused", "a source is missing, and yet it ran")
        self._compare_status()
        self._compare_outputs()
        self._compare_reasons()
        self._note_results()
        self.player.cut_off.clear()

    def _is_cut_off(self) -> bool:
        """Whether the run, or its launcher, was killed and could not tidy up."""
        status = self.said.status
        return status == KILLED or (bool(self.strike) and status not in (0, 1, INTERRUPTED))

    def _missing(self) -> bool:
        return any(self.model.made[key].status == "missing" for key in self.wanted)

    def _unknown(self, key: str) -> list[str]:
        made = self.model.made[key]
        return [name for name in made.names() if name in self.before and name not in self.player.recorded]

    def _must_refuse(self, key: str) -> bool:
        """Files that no record speaks of are in the way; of directories only what is in them counts."""
        made = self.model.made[key]
        if self.player.history.dropin or made.status == "missing":
            return False
        return bool(self._unknown(key)) and not made.task.directory

    def _compare_refusal(self) -> None:
        self.refused = True
        self.player.compare_others(
            self.before, self.after, lambda path: not self.player.is_settled_back(path), "a refusal"
        )
        if self._missing() or all(task.form == "family" for task in self.player.flow.tasks):
            return
        for key in self.wanted:
            made = self.model.made[key]
            names = made.names()
            if any(name in self.before and self.player.recorded.get(name) != "yes" for name in names):
                return
        raise Difference("refused", f"without a reason that the model knows: {self.said.text.strip()}")

    def _is_other(self, path: str) -> bool:
        """Whether a path is no output of what this run makes."""
        if path in self.eggs or self.player.is_settled_back(path):
            return False
        appeared = path not in self.before
        for key in self.wanted:
            made = self.model.made[key]
            if made.owns(path):
                if path in self.before and self.before[path].kind == "directory":
                    return False  # it may be put aside with what is in it
                if appeared and self._is_cut_off():
                    return False  # half of a directory stands there until the next command
                is_known = path in self.player.versions or path in self.player.unclear or path in made.names()
                is_own = made.task.directory and not is_known
                return is_own and not self.overwrite  # then it may have gone to where things are kept
        return not any(name.startswith(f"{path}/") for key in self.wanted for name in self.model.made[key].names())

    def _compare_user_content(self) -> None:
        """What the user wrote under an output's name is still there, or kept among the records."""
        kept: set[bytes] | None = None
        for path, entry in self.before.items():
            if entry.kind != "file" or path in self.eggs or self._is_other(path) or entry.same(self.after.get(path)):
                continue
            content = content_of(entry)
            if content in self.player.versions.get(path, ()) or content in self.player.unclear.get(path, ()):
                continue
            if content[:5] != b"user " and self.player.is_settled_back(path):
                continue  # a process of the killed run went on writing after we had looked
            now = self.after.get(path)
            if now is not None and content_of(now) == content:
                continue
            is_given_up = self.overwrite and any(path in self.model.made[key].names() for key in self.wanted)
            if is_given_up and self.player.recorded.get(path) != "yes":
                continue
            if not PROMISES["keep"]:
                continue
            if kept is None:
                kept = self.player.project.kept_content()
            if content not in kept:
                raise Difference("lost", f"what the user wrote to {path!r} is nowhere any more")

    def _after_kill(self) -> None:
        """Nobody knows what has been recorded of what was to be made."""
        player = self.player
        settled = self._settled()
        player.cut_off += [self.model.made[key] for key in self.wanted]
        self._unsettle(self.wanted - settled)
        for path, entry in self.after.items():
            is_new = entry.kind != "directory" and not entry.same(self.before.get(path))
            if is_new and any(self.model.made[key].owns(path) for key in self.wanted):
                player.unclear.setdefault(path, set()).add(content_of(entry))
        for key in self.wanted - settled:
            if player.checked.get(key) != self.check:
                player.checked[key] = "unknown"
            for name in self.model.made[key].names():
                if name not in player.recorded:
                    player.recorded[name] = "maybe"

    def _compare_stopped(self) -> None:
        """After an interrupt nothing half-made is under a final name."""
        for key in self.wanted:
            made = self.model.made[key]
            for path in {*made.files, *(each for each in self.before if made.owns(each))}:
                self._must_be_whole(path, made)

    def _must_be_whole(self, path: str, made: Made) -> None:
        now, then = self.after.get(path), self.before.get(path)
        if not PROMISES["half"] or now is None or now.kind == "directory" or now.same(then):
            return
        if content_of(now) not in self.player.versions.get(path, ()):
            raise Difference("half", f"{path!r} of {made.key} is {now}, which is not a result")

    def _compare_status(self) -> None:
        failing = [key for key in sorted(self.wanted) if self.model.made[key].status != "ok"]
        if failing and self.said.status == 0:
            raise Difference("stale", f"{failing} must fail, and yet the status is 0")
        if not failing and self.said.status != 0:
            raise Difference("status", f"nothing fails, and yet the status is {self.said.status}")

    def _compare_outputs(self) -> None:
        for key in sorted(self.wanted):
            made = self.model.made[key]
            if made.status == "ok":
                self._compare_made(made)
            else:
                self._compare_failed(made)

    def _compare_made(self, made: Made) -> None:
        for path, content in made.files.items():
            now = self.after.get(path)
            if now is None:
                raise Difference("stale", f"{path!r} is not there")
            if content_of(now) != content:
                raise Difference("stale", f"{path!r} is {content_of(now)!r}, a clean build gives {content!r}")
        if made.task.directory and PROMISES["left"]:
            for path, entry in self.after.items():
                if not made.owns(path) or entry.kind != "file" or path in made.files:
                    continue
                content = content_of(entry)
                versions, unclear = self.player.versions.get(path, ()), self.player.unclear.get(path, ())
                if content in versions and content not in unclear:
                    raise Difference(
                        "stale", f"{path!r} is left in an output directory; a clean build does not make it"
                    )

    def _compare_failed(self, made: Made) -> None:
        for path, entry in [*self.after.items()]:
            if made.owns(path) and entry.kind != "directory":
                self._must_be_whole(path, made)
        if not PROMISES["restore"] or self.player.history.dropin:
            return
        for path, entry in self.before.items():
            gone = made.owns(path) and entry.kind != "directory" and path not in self.after
            content = content_of(entry)
            if self.player.is_settled_back(path) and content in self.player.unclear.get(path, ()):
                continue  # a run that was killed had made it, perhaps whole, and it was moved away
            if gone and content in self.player.versions.get(path, ()):
                raise Difference("lost", f"{path!r} of {made.key}, which failed, is gone")

    def _settled(self) -> set[str]:
        """Keys of results that hold: nothing of them has changed since they were made."""
        player = self.player
        found: set[str] = set()
        for key, made in self.model.made.items():
            whole = player.settled.get(key) == (made.stamp, player.times(made)) and made.status == "ok"
            whole &= all(player.recorded.get(name) == "yes" for name in made.names())
            whole &= all(other in found for other in made.needs)
            whole &= PROMISES["check"] or player.checked.get(key) == self.check
            if whole:
                found.add(key)
        return found

    def _compare_reasons(self) -> None:
        """What holds does not run."""
        if self.force or self.player.history.dropin:
            return
        reasons = dict(_REASON.findall(self.said.text))
        for key in self._settled() & self.wanted:
            name = printable(self.model.made[key].name)
            if name in reasons:
                raise Difference("rerun", f"{name!r} runs because {reasons[name]}, but nothing of it changed")
        if self.again is not None and reasons:
            raise Difference("rerun", f"a second run runs {reasons}")

    def _unsettle(self, keys: set[str]) -> None:
        """These may have been made again: what needs them need not hold, though they say the same."""
        gone = set(keys)
        for key, made in self.model.made.items():  # needs come first
            if key in gone or not gone.isdisjoint(made.needs):
                gone.add(key)
                self.player.settled.pop(key, None)

    def _note_results(self) -> None:
        player = self.player
        self._note_versions()  # also of what was put into output directories and has been moved away by the run
        reasons = dict(_REASON.findall(self.said.text))
        now = {key: (self.model.made[key].stamp, player.times(self.model.made[key])) for key in self.wanted}
        changed = {key for key in now if player.settled.get(key) != now[key] or player.history.dropin}
        self._unsettle(changed | {key for key in now if printable(self.model.made[key].name) in reasons})
        for key in self.wanted:
            made = self.model.made[key]
            if made.status == "ok":
                player.settled[key] = now[key]
                if printable(made.name) in reasons or key not in player.checked or self.player.history.dropin:
                    player.checked[key] = self.check
                for name in made.names():
                    player.recorded[name] = "yes"
            else:
                player.settled.pop(key, None)
                for name in made.names():
                    if name in self.after and name not in player.recorded:
                        player.recorded[name] = "maybe"
