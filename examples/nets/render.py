"""A task with several implementations: which one a token gets is learned from how long each took.

shoal run render.py                       # only the first can run
shoal run render.py --label vector=yes    # both can
"""

import time

from shoal import Net, count, param, take

SCENES = param("scenes", 100)

net = Net("render")
scenes, images = net.place("scenes", range(SCENES)), net.place("images")
tally = net.place("tally", [{}])


def plainly(scene):
    time.sleep(0.02)
    return "plain", scene


def by_vectors(scene):
    return "vector", scene


net.task(
    name="render", scene=take(scenes), put=images, implementations={"cpu": plainly, "vector=yes": by_vectors}
)  # fmt: skip


@net.step(image=take(images), so_far=take(tally), put=tally)
def note(image, so_far):
    return {**so_far, image[0]: so_far.get(image[0], 0) + 1}


@net.step(found=take(tally), left=count(scenes), new=count(images), when=lambda left, new: not left and not new)
def finish(found, left, new):
    return net.result(found)
