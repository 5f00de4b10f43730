package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that writes to log. etcd warns at every
// start and about every slow disk access, so its warnings come as debug lines,
// and only its errors as warnings. It calls fatal if etcd cannot go on, such as on damaged
// data: nobody else ends the process.
func zapLogger(log *slog.Logger, fatal func(error)) *zap.Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	end := ending{fatal}
	return zap.New(slogCore{log: log}, zap.WithFatalHook(end), zap.WithPanicHook(end))
}

// ending is what follows an entry with which etcd ends.
type ending struct{ fatal func(error) }

// OnWrite implements zapcore.CheckWriteHook.
func (e ending) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := fmt.Errorf("etcd server: %s", entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	if e.fatal != nil {
		e.fatal(err)
	}
	panic(err)
}

// slogCore is a zapcore.Core that writes to a slog.Logger.
type slogCore struct{ log *slog.Logger }

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// needless are beginnings of what etcd calls an error and says of every new data directory (the version is
// written with the first snapshot) and of every stop, of what it says of a failed write before it ends because of it, and of a file for its
// log that it cannot make beforehand: if it cannot when it needs the file, it ends.
var needless = [...]string{"failed to update storage version", "setting up serving from embedded etcd failed",
	"writeAt failed", "writing data failed", "Committing transaction failed", "failed to preallocate space"}

func isNeedless(message string) bool {
	for _, n := range needless {
		if strings.HasPrefix(message, n) {
			return true
		}
	}
	return false
}

// Enabled implements zapcore.LevelEnabler.
func (c slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), level(l))
}

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{log: c.log.With(attrs(fields)...)}
}

// Check implements zapcore.Core. What fatal gets is not logged too.
func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Level < zapcore.DPanicLevel {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	to := level(e.Level)
	if isNeedless(e.Message) {
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
