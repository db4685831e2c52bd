package perigee.sdktest;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** The conversation with the runner: a JSON object in a line, and a line of text for an answer. */
final class Lines {
    private static final BufferedReader ANSWERS =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Lines() {}

    /** Says how a scenario went. */
    static void result(String scenario, String result, String reason) {
        print("scenario", scenario, "result", result, "reason", reason);
    }

    /** Asks the runner to do something with the server, and returns once it is done. */
    static synchronized void ask(String scenario, String what) throws IOException {
        print("scenario", scenario, "ask", what);
        String answer = ANSWERS.readLine();
        if (!"ok".equals(answer)) {
            throw new IOException(what + ": " + answer);
        }
    }

    private static void print(String... keysAndValues) {
        var line = new StringBuilder("{");
        for (int i = 0; i < keysAndValues.length; i += 2) {
            line.append(i == 0 ? "" : ",").append(quoted(keysAndValues[i])).append(':').append(quoted(keysAndValues[i + 1]));
        }
        synchronized (System.out) {
            System.out.println(line.append('}'));
            System.out.flush();
        }
    }

    private static String quoted(String text) {
        var out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
