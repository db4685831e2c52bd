package perigee.sdktest;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;

/**
 * Runs scenarios against the server at an endpoint: {@code Main ENDPOINT SCENARIO...}. It prints a
 * line of JSON for each, and asks the runner in the same way to end and start the server.
 */
public final class Main {
    /** Scenarios mostly wait, but each has clients with threads of their own. */
    private static final int AT_ONCE = 6;

    private Main() {}

    public static void main(String[] args) throws Exception {
        List<String> names = Arrays.asList(args).subList(1, args.length);
        Map<String, Scenario> scenarios = Scenario.all();
        try (var pool = new Pool(AT_ONCE)) {
            for (String name : names) {
                pool.submit(() -> run(args[0], name, scenarios.get(name)));
            }
        }
        System.exit(0); // some threads of the SDK outlive its clients
    }

    private static void run(String endpoint, String name, Scenario scenario) {
        if (scenario == null) {
            Lines.result(name, "fail", "the program does not know it");
            return;
        }
        try (var context = new Context(endpoint, name)) {
            scenario.run(context);
            Lines.result(name, "pass", "");
        } catch (Throwable e) {
            var trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            System.err.println(name + ": " + trace);
            Lines.result(name, "fail", e.toString());
        }
    }

    /** An executor that waits for everything when it is closed. */
    private static final class Pool implements AutoCloseable {
        private final java.util.concurrent.ExecutorService executor;

        Pool(int threads) {
            executor = Executors.newFixedThreadPool(threads);
        }

        void submit(Runnable work) {
            executor.execute(work);
        }

        @Override
        public void close() throws InterruptedException {
            executor.shutdown();
            executor.awaitTermination(1, java.util.concurrent.TimeUnit.HOURS);
        }
    }
}
