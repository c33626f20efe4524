SHARE {
    const int64_t pairs = b->frequencies_dims[0];
    EACH(t, b->positions_dims[0]) {
        for (int64_t i = 0; i < pairs; i++) {
            double angle = b->positions[t] * b->frequencies[i];
            float *out = b->out + 2 * (t * pairs + i);
            out[0] = (float)(b->magnitude * cos(angle));
            out[1] = (float)(b->magnitude * sin(angle));
        }
    }
}
