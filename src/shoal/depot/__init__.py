"""The depot of one agent: objects on its disk, given to peers and fetched from them.

An *object* is a file with an opaque name, a size and a checksum; a name stands for one content for ever. Who has which
object, and who may have it, is for others to say: a fetcher is handed *grants*. `cache` keeps objects, `lend` offers
files where they lie, `serve` gives them away, `fetch` gets them. The transport below serves shared memory, too:
`handshake` ○ and `channel` open connections, `listener` accepts them and passes each to its service.
"""
