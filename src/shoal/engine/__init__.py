"""The live driver of one node: workspace, ledger, runners and the loop around broker and flow."""
