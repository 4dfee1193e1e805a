"""What tests share: builders of workflows and graphs, and ways to run the installed command."""
