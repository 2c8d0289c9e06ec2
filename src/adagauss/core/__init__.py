"""The learner: tasks, training, state and settings."""
