SHARE {
    const int64_t pairs = b->frequencies_dims[0];
    EACH(t, b->positions_dims[0]) {
        double tuned = b->magnitude * (1 + b->temperature * log1p(b->positions[t] / b->length));
        for (int64_t i = 0; i < pairs; i++) {
            double angle = b->positions[t] * b->frequencies[i];
            float *out = b->out + 2 * (t * pairs + i);
            out[0] = (float)(tuned * cos(angle));
            out[1] = (float)(tuned * sin(angle));
        }
    }
}
