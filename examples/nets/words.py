"""Map and reduce: how many parts there are, and which words, is known only when the text has been read.

shoal run words.py [parts=4]
"""

from shoal import Net, count, each, param, take

TEXT = "a rose is a rose is a rose and so is a daisy but no daisy is a rose"
PARTS = param("parts", 4)

net = Net("words")
texts, pieces, pairs = net.place("texts", [TEXT]), net.place("pieces"), net.place("pairs")
table = net.place("table", [{}])


@net.task(text=take(texts))
def split(text):
    words = text.split()
    size = -(-len(words) // PARTS)
    return {pieces: each(words[at : at + size] for at in range(0, len(words), size))}


@net.task(piece=take(pieces))
def tally(piece):
    return {pairs: each((word, piece.count(word)) for word in dict.fromkeys(piece))}


@net.step(a=take(pairs, key=lambda pair: pair[0]), b=take(pairs, key=lambda pair: pair[0]), priority=1)
def merge(a, b):
    return {pairs: (a[0], a[1] + b[1])}


nothing_left = [lambda whole: whole == 0, lambda parts: parts == 0]


@net.step(pair=take(pairs), so_far=take(table), whole=count(texts), parts=count(pieces), when=nothing_left)
def collect(pair, so_far, whole, parts):
    return {table: {**so_far, pair[0]: pair[1]}}


@net.step(found=take(table), left=count(pairs), whole=count(texts), parts=count(pieces), priority=-1,
          when=[*nothing_left, lambda left: left == 0])  # fmt: skip
def finish(found, left, whole, parts):
    return net.result(
        ", ".join(f"{word} {found[word]}" for word in sorted(found, key=lambda word: (-found[word], word)))
    )
