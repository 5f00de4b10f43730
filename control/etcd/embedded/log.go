package embedded

import (
	"context"
	"log/slog"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that writes to log. etcd warns at every
// start and about every slow disk access, so its warnings come as debug lines,
// and only its errors as warnings.
func zapLogger(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	// etcd calls Fatal on damaged data: that must not end the process.
	return zap.New(slogCore{log: log}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// slogCore is a zapcore.Core that writes to a slog.Logger.
type slogCore struct{ log *slog.Logger }

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// harmless recognises what etcd calls an error and says of every new data directory
// (the version is written with the first snapshot), and of every stop.
func harmless(message string) bool {
	return strings.HasPrefix(message, "failed to update storage version") ||
		strings.HasPrefix(message, "setting up serving from embedded etcd failed")
}

// Enabled implements zapcore.LevelEnabler.
func (c slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), level(l))
}

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{log: c.log.With(attrs(fields)...)}
}

// Check implements zapcore.Core.
func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	to := level(e.Level)
	if harmless(e.Message) {
		to = slog.LevelDebug
	}
	c.log.Log(context.Background(), to, "etcd server: "+e.Message, attrs(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (c slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	var args []any
	for _, f := range fields {
		f.AddTo(enc)
		if v, ok := enc.Fields[f.Key]; ok {
			args = append(args, slog.Any(f.Key, v))
		}
	}
	return args
}
