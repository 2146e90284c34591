"""What runs on the cluster: Python 3.6, standard library, nothing of the rest of the project. Shipped as zipapps."""
