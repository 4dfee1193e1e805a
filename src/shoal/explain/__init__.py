"""Why a task, or a whole run, is where it is: pure answers from what brokers, flows and stores know."""
