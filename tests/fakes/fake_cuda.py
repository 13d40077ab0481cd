"""As much of `torch.cuda` as micro-batches use, so that they form groups on a machine without a GPU."""


class FakeStream:
    """A stream that knows what has been done before what is given to it next."""

    def __init__(self):
        self.done = set()

    def record_event(self):
        return frozenset(self.done)

    def wait_event(self, event):
        self.done |= event

    def wait_stream(self, other):
        self.done |= other.done


class FakeCuda:
    """Stands for `torch.cuda`; what is computed is computed at once, on the CPU."""

    Stream = FakeStream

    def __init__(self):
        self.now = FakeStream()

    def is_available(self):
        return True

    is_initialized = is_available

    def current_stream(self):
        return self.now

    def set_stream(self, stream):
        self.now = stream
