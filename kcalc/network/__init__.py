"""Networks: layers, the primitives that they are made of, graphs, builders and architectures, and the folds that read them."""
