"""What makes a run of Shoal a stand-in for the original `makeflow` program: its log, messages, wrappers and cleaning."""
