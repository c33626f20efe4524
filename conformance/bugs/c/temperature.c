SHARE {
    const double by = b->temperature;
    EACH(i, b->logits_dims[0]) b->out[i] = (float)(b->logits[i] / by);
}
