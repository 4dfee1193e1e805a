"""What makes a run a stand-in for the original `makeflow` program: its log, messages, wrappers and cleaning."""
