"""What a workflow is: resources, profiles, the columnar graph and its ranks. Pure values, no behaviour in time."""
