"""Images, augmentation, datasets, class orders and the stream of tasks."""
